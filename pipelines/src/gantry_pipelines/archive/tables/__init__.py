"""Tables over the files of an archive: Iceberg and Delta, with the archive's manifest as the truth."""
