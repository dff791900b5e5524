// Package yaml parses YAML, and therefore JSON too, into a tree of nodes that
// know their line and column, and writes such trees.
//
// It is based on go.yaml.in/yaml. In addition it refuses, with the position,
// features that settings files don't need: tags, several documents, keys that
// are not scalars, invalid UTF-8, more levels than [MaxDepth] and more nodes
// than [MaxNodes] with aliases expanded. Plain scalars have their YAML 1.2
// types.
package yaml
