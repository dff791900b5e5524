// Package ui is the dashboard: the embedded files that a browser needs, and the handler that serves them.
//
// The files are written by hand and served as they are: HTML, one style sheet and JavaScript modules, with no build
// step and nothing from other sites. The page asks its own node for JSON once a second while it is visible.
//
// Data from a node is hostile: rule names, keys and attributes are whatever a caller sent. The page puts them only into
// text nodes and attributes that it creates, never into markup, and the content security policy blocks any script in
// them.
package ui
