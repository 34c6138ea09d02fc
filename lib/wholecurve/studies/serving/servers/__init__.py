"""Contenders as servers: started, checked, watched and stopped, or already running."""
