"""The engine behind the OpenAI API: completions, chat, models, health, metrics."""
