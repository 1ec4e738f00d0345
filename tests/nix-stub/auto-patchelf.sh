# What nixpkgs' hook does to search paths: each library gets a new one from what it names as needed (all of it is in the
# prefix or the machine's own folders here) and appendRunpaths. Whatever it had before, $ORIGIN too, is gone.
# SPDX-License-Identifier: MIT
autoPatchelf() {
  local file path
  path=$(printf '%s\n' $appendRunpaths | paste -sd:)
  find "$out" -type f -name '*.so*' | while read -r file; do
    if [ "$(head -c 4 "$file" | tr -d '\0')" != $'\177ELF' ]; then continue; fi
    patchelf --set-rpath "$path" "$file"
  done
}
fixupOutputHooks+=(autoPatchelf)
