// Package yaml parses YAML, and so JSON, into a tree of nodes that know their line and column, and writes such trees.
//
// It is based on go.yaml.in/yaml. In addition it refuses, with the position, what settings files are better off
// without: tags, several documents, keys that are not scalars, invalid UTF-8, more levels than [MaxDepth] and more
// nodes than [MaxNodes] with aliases expanded. Plain scalars mean what YAML 1.2 says.
package yaml
