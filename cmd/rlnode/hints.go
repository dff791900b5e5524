package main

import (
	"errors"
	"regexp"
	"strings"

	"github.com/alecthomas/kong"
)

// stray matches what kong says of a word that it has no place for.
var stray = regexp.MustCompile(`^(unexpected argument|unknown flag) (\S+?)(,|$)`)

// hintUsage returns what a person has probably meant by a command line that is wrong; empty if there is no saying.
func hintUsage(err error) string {
	var parse *kong.ParseError
	if !errors.As(err, &parse) || parse.Context.Selected() == nil {
		return ""
	}
	command := parse.Context.Selected()
	found := stray.FindStringSubmatch(err.Error())
	if found == nil {
		return ""
	}
	word := found[2]
	has := func(flag string) bool { return findFlag(command, flag) != nil }
	switch name := command.FullPath(); {
	case found[1] == "unexpected argument" && has("--file"):
		return "; the file is given by -f: " + name + " -f " + word
	case found[1] == "unexpected argument" && has("--key") && has("--rule"):
		return "; the subject is given by --key: " + name + " --rule RULE --key " + word
	case (word == "-f" || word == "--file") && len(command.Positional) > 0:
		return "; the file needs no flag: " + name + " " + strings.ToUpper(command.Positional[0].Name)
	case word == "--addr" && has("--admin"):
		return "; " + name + " asks the admin plane, which is given by --admin"
	case word == "--admin" && has("--addr"):
		return "; " + name + " asks the data plane, which is given by --addr"
	}
	return ""
}
