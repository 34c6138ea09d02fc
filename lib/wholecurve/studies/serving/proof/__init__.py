"""What the client is worth: a server with scripted timings, and the client measured against it."""
