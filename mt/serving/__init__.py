"""HTTP server for a run: JSON API and page, with FastAPI and uvicorn (the extra `serve`)."""
