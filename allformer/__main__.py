"""`python -m allformer VERB`"""

from allformer.cli.main import main

if __name__ == "__main__":
    main()
