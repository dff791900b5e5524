package main

import (
	"errors"
	"regexp"
	"strings"

	"github.com/alecthomas/kong"
)

// strayWord matches kong's error for a word that fits nowhere.
var strayWord = regexp.MustCompile(`^(unexpected argument|unknown flag) (\S+?)(,|$)`)

// typedPath returns a command's path as users type it: without the name of a default command.
func typedPath(command *kong.Node) string {
	if p := command.Parent; p != nil && p.DefaultCmd == command {
		return p.FullPath()
	}
	return command.FullPath()
}

// hintUsage suggests what the user probably meant by an invalid command line;
// empty without a guess.
func hintUsage(err error) string {
	parse, ok := errors.AsType[*kong.ParseError](err)
	if !ok || parse.Context.Selected() == nil {
		return ""
	}

	command := parse.Context.Selected()
	found := strayWord.FindStringSubmatch(err.Error())
	if found == nil {
		return ""
	}

	word := found[2]
	has := func(flag string) bool { return findFlag(command, flag) != nil }
	name := typedPath(command)
	switch {
	case found[1] == "unexpected argument" && has("--file"):
		return "; give the file with -f: " + name + " -f " + word
	case found[1] == "unexpected argument" && has("--key") && has("--rule"):
		return "; give the subject with --key: " + name + " --rule RULE --key " + word
	case (word == "-f" || word == "--file") && len(command.Positional) > 0:
		return "; the file needs no flag: " + name + " " + strings.ToUpper(command.Positional[0].Name)
	case word == "--addr" && has("--admin"):
		return "; " + name + " asks the admin plane: set --admin"
	case word == "--admin" && has("--addr"):
		return "; " + name + " asks the data plane: set --addr"
	}

	return ""
}
