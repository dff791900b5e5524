package rules

import (
	"cmp"
	"strings"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/rules/document"
)

// compileEnvoy compiles the document's section `envoy`.
func (c *compiler) compileEnvoy() {
	specs := c.doc.Envoy
	if len(specs) == 0 {
		return
	}

	c.set.envoy = &envoyTrees{make(map[string]*EnvoyDomain, len(specs)), map[string]*EnvoyNode{}}

	numbers := make(map[string]int, len(c.set.names)) // by name, in c.set.names
	for i, name := range c.set.names {
		numbers[name] = i
	}

	number := func(name string) int {
		n, ok := numbers[name]
		if !ok {
			n = len(c.set.names)
			c.set.names = append(c.set.names, name)
			numbers[name] = n
		}
		return n
	}

	for _, s := range specs {
		d := &EnvoyDomain{name: s.Domain}
		counted := number(EnvoyName + "/" + s.Domain)
		top := &EnvoyNode{Domain: s.Domain, Path: s.Domain, seed: c.set.key.envoySeed(s.Domain)}
		d.root = c.compileEnvoyBranch(top, s.Descriptors, func(n *EnvoyNode) int {
			if n.Detailed {
				return number(n.Path)
			}
			return counted
		})
		c.set.envoy.domains[s.Domain] = d
	}
}

// compileEnvoyBranch compiles list, the descriptors directly below above.
// number returns the Rule.Index of a node.
func (c *compiler) compileEnvoyBranch(
	above *EnvoyNode, list []*document.EnvoyDescriptorSpec, number func(*EnvoyNode) int,
) (b envoyBranch) {
	if len(list) == 0 {
		return b
	}

	b.byText = make(map[string]*envoyDescriptor, len(list))
	for _, s := range list {
		text := s.Text()
		// Siblings append to the same levels, and must not share the array.
		n := &EnvoyNode{
			Domain: above.Domain, Path: above.Path + "." + text, Shadow: s.Shadow, Quota: s.Quota, Detailed: s.Detailed,
			levels: append(above.levels[:len(above.levels):len(above.levels)],
				EnvoyEntry{s.Key, s.Value}), seed: above.seed,
		}
		d := &envoyDescriptor{below: c.compileEnvoyBranch(n, s.Descriptors, number)}
		if s.Limit != nil {
			c.compileEnvoyLimit(n, s.Limit, number)
			d.node = n
		}

		b.byText[text] = d
		if strings.Contains(text, "*") {
			b.wildcards = append(b.wildcards, envoyWildcard{newGlob(text), d})
		}
	}

	return b
}

// compileEnvoyLimit sets the fields of n that come from a rate_limit.
func (c *compiler) compileEnvoyLimit(n *EnvoyNode, s *document.EnvoyLimitSpec, number func(*EnvoyNode) int) {
	n.LimitName = s.Name
	n.Replaces = s.Replaces
	n.Unlimited = s.Unlimited

	if s.Unlimited {
		return
	}

	n.Requests = uint32(s.Limit)
	n.Unit = s.Unit
	limit := s.LimitSpec
	if s.Unit != "" {
		limit.Window = document.EnvoyUnit(s.Unit)
		limit.Per = document.FormatDuration(limit.Window)
	}

	spec := &document.RuleSpec{Name: n.Path, Shadow: n.Shadow, Limits: []*document.LimitSpec{&limit}}
	spec.Settings = document.Settings{OnLimit: "refuse", Consistency: s.Consistency, OnPartition: s.OnPartition}

	if limit.Limit == 0 {
		// A fixed window with an amount of 0 refuses everything. No node needs the owner for that.
		limit.Algorithm = algorithms.FixedWindow.String()
		limit.Burst = 0
		spec.OnPartition = RefuseUncounted.String()
	}

	limit.Algorithm = cmp.Or(limit.Algorithm, algorithms.FixedWindow.String())
	n.Rule = c.compileRule(spec, nil)
	n.Rule.Index = number(n)
	n.Rule.Envoy = true

	for _, e := range n.levels {
		n.Rule.Key = append(n.Rule.Key, e.Key)
	}

	if n.Quota {
		lenient := *n.Rule
		lenient.Shadow = true
		n.shadowRule = &lenient
	}

	if c.set.envoy.paths[n.Path] == nil {
		c.set.envoy.paths[n.Path] = n
	}
}
