"""Commands of the YuniKorn scheduler interface."""
