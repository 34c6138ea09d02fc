"""Studies: plan and protocol, workloads, contenders in processes of their own, and their measurement."""
