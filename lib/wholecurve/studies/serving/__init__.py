"""Engines under load: real servers, real workloads, one client for all of them."""
