package main

import (
	"errors"
	"fmt"

	"github.com/rlnode/rlnode/persist"
	"github.com/rlnode/rlnode/rules"
)

// importCmd makes rules of other programs' configuration.
type importCmd struct {
	Envoy importEnvoyCmd `cmd:"" help:"Import the configuration of envoyproxy/ratelimit, the usual server behind Envoy's rate limit service."`
}

// importEnvoyCmd makes rules of the configuration of Envoy's rate limit service.
type importEnvoyCmd struct {
	Files        []string `arg:"" placeholder:"FILE" help:"Configuration files, each with a domain; - is standard input."`
	Output       string   `short:"o" default:"-" placeholder:"FILE" help:"File to write; - is standard output (default)."`
	MergeDomains bool     `help:"Files may have the same domain: their descriptors are put together, in the order of the files."`
}

// Help implements kong.HelpProvider.
func (importEnvoyCmd) Help() string {
	return `The files become the section envoy: of a rules file. Differences are printed on standard error, as
file:line:column: message. So are mistakes; then nothing is written.

Examples:

  rlnode import envoy config/*.yaml -o rules.yaml
  rlnode import envoy config.yaml | rlnode apply -f -

Exit codes: 0 done, 1 a file has mistakes, 2 the command line is wrong.`
}

// envoyDiffers is what every import says.
const envoyDiffers = `What differs from the reference server for every file:
- A refused hit is not counted, so a window's budget is what was admitted. There, refused hits count too.
- The hits of a request are taken for all of its descriptors or for none. There, each descriptor is charged by itself.
- Comments are not kept.
`

// Run reads the files and writes the rules.
func (c *importEnvoyCmd) Run(env *environment) error {
	var domains []*rules.EnvoySpec
	from := map[string]string{} // file by domain
	mistaken := false
	for _, name := range c.Files {
		src, err := readFile(env, name, rules.MaxDocument)
		if err != nil {
			return err
		}
		domain, changed, err := rules.ReadEnvoy(src)
		var mistakes rules.Errors
		if errors.As(err, &mistakes) {
			printMistakes(env.stderr, name, "", mistakes)
			mistaken = true
			continue
		}
		printMistakes(env.stderr, name, "note: ", changed)
		first, taken := from[domain.Domain]
		switch {
		case !taken:
			from[domain.Domain] = name
			domains = append(domains, domain)
		case c.MergeDomains:
			for _, d := range domains {
				if d.Domain == domain.Domain {
					d.Merge(domain)
				}
			}
		default:
			fmt.Fprintf(env.stderr, "%s: the domain %q is that of %s; --merge-domains puts both together\n", shownName(name), domain.Domain, shownName(first))
			mistaken = true
		}
	}
	if mistaken {
		return &exit{code: exitFailed}
	}
	doc, err := rules.EnvoyDocument(domains)
	var mistakes rules.Errors
	if errors.As(err, &mistakes) {
		printMistakes(env.stderr, "the files together", "", mistakes)
		return &exit{code: exitFailed}
	}
	text, err := doc.YAML()
	if err != nil {
		return err
	}
	fmt.Fprint(env.stderr, envoyDiffers)
	if c.Output == "-" {
		_, err := env.stdout.Write(text)
		return err
	}
	if err := persist.ReplaceFile(c.Output, text); err != nil {
		return fmt.Errorf("write the rules: %w", err)
	}
	_, err = fmt.Fprintf(env.stdout, "%d domain(s) of %d file(s) are in %s\n", len(domains), len(c.Files), c.Output)
	return err
}
