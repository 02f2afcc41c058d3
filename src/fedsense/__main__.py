"""``python -m fedsense`` is the command ``fedsense``."""

from fedsense.cli import main

main()
