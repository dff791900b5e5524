package rules

import (
	_ "embed"
	"fmt"
)

//go:embed starter.yaml
var starterSource string

// StarterSource returns the text of the rules that a node starts with by default.
func StarterSource() []byte { return []byte(starterSource) }

// Starter returns the starter rules.
func Starter() *Document {
	d, err := Parse(StarterSource())
	if err != nil {
		panic(fmt.Sprintf("starter rules: %v", err)) // can't happen: a test parses them
	}
	return d
}
