"""The search of a topic in the files of a store: a child process of low priority scans, the sidecar streams its hits.

routes/search.py  ->  searches  --request, budget-->  scan_process  ->  topic_scan  ->  files of the store
                                <--hits, progress--
"""
