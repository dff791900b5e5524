package document

import (
	"embed"
	"fmt"
	"strings"
)

//go:embed starters/*.yaml
var starterFiles embed.FS

// StarterNames are the names of the starter sets, in the order in which people
// meet them. The first is what a node begins with.
var StarterNames = []string{"default", "public-api", "login", "search", "standard", "heavy", "llm"}

// StarterSet returns the text of a starter set, or nil if there is none with this name.
func StarterSet(name string) []byte {
	text, err := starterFiles.ReadFile("starters/" + name + ".yaml")
	if err != nil {
		return nil
	}
	return text
}

// StarterTitle returns the first line of a starter set, which says what it is for.
func StarterTitle(name string) string {
	first, _, _ := strings.Cut(string(StarterSet(name)), "\n")
	return strings.TrimPrefix(first, "# ")
}

// StarterSource returns the text of the rules that a node starts with by default.
func StarterSource() []byte { return StarterSet(StarterNames[0]) }

// Starter returns the starter rules.
func Starter() *Document {
	d, err := Parse(StarterSource())
	if err != nil {
		panic(fmt.Sprintf("starter rules: %v", err)) // can't happen: a test parses them
	}
	return d
}
