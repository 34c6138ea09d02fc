"""Model families, one file each, and everything that turns a checkpoint on disk into one."""
