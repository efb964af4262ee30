"""`fsachain report`: what an experiment did, as one HTML file that needs nothing but itself.

collect      what the files of an experiment say; what is absent or damaged becomes a note; the utterances that are shown
page         the tables and the HTML, from the templates in templates/
"""
