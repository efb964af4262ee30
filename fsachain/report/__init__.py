"""`fsachain report`: what an experiment did, as one HTML file that needs nothing but itself.

write       all of it together
layout      where the files of an experiment lie
collect     everything that they say; what is absent or damaged becomes a note
events      logs that are being written, or were cut
training    epochs, utterances left out, how far a training is
stages      what ran, with which versions, and what each stage took
scores      word errors, confusions, the utterances worth a look
sizes       data sets and graphs
heard       the utterances that are shown: recordings, times, pictures
media       figures and recordings as data URIs
contents    the tables of the page, made of `tables`
page        the HTML, from the templates in templates/
tensorboard    the training log as TensorBoard scalars
"""
