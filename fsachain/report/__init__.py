"""`fsachain report`: what an experiment did, as one HTML file that needs nothing but itself.

collect      what the files of an experiment say; what is absent or damaged becomes a note
contents     the tables of the page
heard        the utterances that are shown: words, recordings, times, pictures
media        figures and recordings as data URIs
page         the HTML, from the templates in templates/
"""
