"""One request to a server that speaks the OpenAI API, from its body to its trace."""
