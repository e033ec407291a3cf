#!/usr/bin/env -S zsh -f
# Prints what a new zsh makes of lines by a TAB at the end of each: completed_by.zsh <folder of completions> <line> ...
zmodload zsh/zpty
export ZDOTDIR=$(mktemp -d)
trap 'rm -rf $ZDOTDIR' EXIT
print -r -- "fpath=(${(q)1} \$fpath) lines=(${(q)@[2,-1]})" >$ZDOTDIR/.zshrc
cat >>$ZDOTDIR/.zshrc <<'RC'
autoload -U compinit
compinit -u -D
# Only line editors complete, and they have a terminal: one key, since a round of keys is slow on a machine with much to do.
complete_lines() {
  for BUFFER in $lines; do
    CURSOR=$#BUFFER
    zle complete-word
    print -r -- $BUFFER >>$ZDOTDIR/completed
  done
  print DONE
}
zle -N complete_lines
bindkey '^T' complete_lines
PROMPT=READY RPROMPT=
RC
zpty -b shell zsh -o no_global_rcs -i
zpty -r -m shell before '*READY*'
zpty -n -w shell $'\C-T'
zpty -r -m shell after '*DONE*'
cat $ZDOTDIR/completed
