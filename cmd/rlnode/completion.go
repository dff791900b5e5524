package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// completionCmd prints a script for a shell.
type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

func (c *completionCmd) Run(env *environment) error {
	_, err := io.WriteString(env.stdout, completions[c.Shell])
	return err
}

// completeWord is the hidden command with which scripts ask for candidates.
const completeWord = "complete"

// completions are the scripts, by shell. Each passes the words up to the cursor
// to rlnode, and gets a line for each candidate: the word, a tab and its help.
// Without candidates, the shell completes file names.
var completions = map[string]string{
	"bash": `_rlnode() {
  local IFS=$'\n'
  COMPREPLY=($(rlnode complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null | cut -f 1))
}
complete -o default -F _rlnode rlnode
`,
	"zsh": `#compdef rlnode
_rlnode() {
  local -a found
  local line tab=$'\t'
  for line in "${(@f)$(rlnode complete "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
    [[ -n $line ]] && found+=("${${line%%$tab*}//:/\\:}:${line#*$tab}")
  done
  if (( $#found )); then _describe rlnode found; else _files; fi
}
if [[ $funcstack[1] == _rlnode ]]; then _rlnode "$@"; else compdef _rlnode rlnode; fi
`,
	"fish": `complete -c rlnode -a '(rlnode complete (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)'
`,
}

// complete prints the candidates for the last of words, which may be empty.
func complete(w io.Writer, root *kong.Node, words []string) error {
	if len(words) == 0 {
		words = []string{""}
	}

	last := words[len(words)-1]
	at, waiting := parseWords(root, words[:len(words)-1])

	if last == "=" {
		last = "" // bash cuts --mode=count into three words
	}

	for _, c := range candidates(root, at, waiting, last) {
		if strings.HasPrefix(c.word, last) {
			if _, err := fmt.Fprintf(w, "%s\t%s\n", c.word, strings.ReplaceAll(c.help, "\n", " ")); err != nil {
				return err
			}
		}
	}

	return nil
}

// parseWords returns the command that words lead to, and the flag whose value comes next, if any.
func parseWords(root *kong.Node, words []string) (at *kong.Node, waiting *kong.Flag) {
	at = root
	for _, word := range words {
		switch {
		case word == "=" && waiting != nil:
		case waiting != nil:
			waiting = nil
		case strings.HasPrefix(word, "-"):
			name, _, given := strings.Cut(word, "=")
			if f := findFlag(at, name); f != nil && !f.IsBool() && !given {
				waiting = f
			}
		default:
			i := slices.IndexFunc(at.Children, func(n *kong.Node) bool { return n.Name == word && !n.Hidden })
			if i >= 0 {
				at = at.Children[i]
			}
		}
	}

	return at, waiting
}

// findFlag returns the flag of a command with this name, as --name or -n.
func findFlag(n *kong.Node, name string) *kong.Flag {
	for _, group := range n.AllFlags(true) {
		for _, f := range group {
			if "--"+f.Name == name || f.Short != 0 && "-"+string(f.Short) == name {
				return f
			}
		}
	}
	return nil
}

// candidate is a possible next word.
type candidate struct{ word, help string }

func candidates(root, at *kong.Node, waiting *kong.Flag, last string) (list []candidate) {
	if waiting != nil {
		return values(waiting.Value)
	}

	if strings.HasPrefix(last, "-") {
		for _, group := range at.AllFlags(true) {
			for _, f := range group {
				list = append(list, candidate{"--" + f.Name, f.Help})
			}
		}
		return list
	}

	commands := at
	if at.Name == "help" {
		commands = root
	}

	for _, n := range commands.Children {
		if !n.Hidden {
			list = append(list, candidate{n.Name, n.Help})
		}
	}

	for _, p := range at.Positional {
		list = append(list, values(p)...)
	}

	return list
}

// values lists the values of a flag or an argument with an enum.
func values(v *kong.Value) (list []candidate) {
	if v.Enum == "" {
		return nil
	}
	for _, word := range v.EnumSlice() {
		list = append(list, candidate{word: word})
	}
	return list
}
