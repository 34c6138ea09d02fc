"""How requests are set going: closed and open loops, sessions, several processes."""
