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

// Help implements kong.HelpProvider.
func (completionCmd) Help() string {
	return `The script completes commands, flags and their values, of whatever release of rlnode is on PATH.

Examples:

  source <(rlnode completion bash)                                     in ~/.bashrc
  source <(rlnode completion zsh)                                      in ~/.zshrc, after compinit
  rlnode completion fish > ~/.config/fish/completions/rlnode.fish`
}

// Run prints the script.
func (c *completionCmd) Run(env *environment) error {
	_, err := io.WriteString(env.stdout, completions[c.Shell])
	return err
}

// completeWord is the command that scripts ask for what may come next. It is in no list of commands.
const completeWord = "complete"

// completions are the scripts. Each asks rlnode with the words up to the cursor, and gets a line with a word, a tab and what
// it means for each candidate. If there are none, the shell completes names of files.
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

// complete prints what the last of words, which may be empty, can become after the words before it.
func complete(w io.Writer, root *kong.Node, words []string) error {
	if len(words) == 0 {
		words = []string{""}
	}
	last := words[len(words)-1]
	at, waiting := follow(root, words[:len(words)-1])
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

// follow returns the command that words lead to, and the flag whose value comes next, if any.
func follow(root *kong.Node, words []string) (at *kong.Node, waiting *kong.Flag) {
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

// candidate is a word that may come next.
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

// values lists what a flag or an argument may be, if that is one of few.
func values(v *kong.Value) (list []candidate) {
	if v.Enum == "" {
		return nil
	}
	for _, word := range v.EnumSlice() {
		list = append(list, candidate{word: word})
	}
	return list
}
