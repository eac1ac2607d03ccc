"""A run behind HTTP: a JSON API and a page, by FastAPI and uvicorn (the extra `serve`)."""
