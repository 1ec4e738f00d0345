# yy.mmdd.NNN from the flake's own metadata: the commit's UTC date, and the last three digits of the number of commits that
# lead to it (0 where the source has no history, as an archive). How many commits a day had is not to be known here.
{ lib, self }:
let
  date = self.lastModifiedDate or "19700101000000";
  at = builtins.substring;
  number = toString (lib.mod (self.revCount or 0) 1000);
in
"${at 2 2 date}.${at 4 4 date}.${at 0 (3 - builtins.stringLength number) "000"}${number}"
