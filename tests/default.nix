{ pkgs, self }:
{ }
