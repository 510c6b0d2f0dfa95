"""The YuniKorn Scheduler Interface: any resource manager, in process or over gRPC."""
