"""Files that the power may cut anywhere, as records that each count whole or not at all. Pure.

Call `codec.encode_record` and `codec.find_records`; `version.check_version` for files of JSON.
Imports nothing of Limpet but `errors` and `decoding`.
"""
