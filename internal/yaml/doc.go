// Package yaml reads YAML, and so JSON, into a tree of nodes that know their line and column, and writes such
// trees.
//
// Reading stands on go.yaml.in/yaml. On top of it, a document is refused, with the place, for what files of
// settings are better without: tags, several documents, keys that are not plain values, invalid UTF-8, more
// levels than [MaxDepth] and more nodes than [MaxNodes] with aliases expanded. Plain scalars mean what YAML 1.2
// says they mean.
package yaml
