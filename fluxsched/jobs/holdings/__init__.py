"""Record of the resources that jobs hold: grants (RFC 20), targets and countables."""
