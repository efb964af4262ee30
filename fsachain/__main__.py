"""`python -m fsachain` is the command `fsachain`: the form in which torchrun starts it."""

from fsachain.asr.cli import main

if __name__ == "__main__":
    main()
