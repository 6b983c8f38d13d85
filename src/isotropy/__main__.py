from isotropy.cli import app

app()
