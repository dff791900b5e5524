// Package ui is the dashboard: the files that a browser needs, held in the program, and what serves them.
//
// They are written by hand, as they are served: HTML, one style sheet, and modules of JavaScript, without a build
// step and without anything from elsewhere. The page asks the node that it came from for JSON, once a second while
// somebody looks at it.
//
// What comes from a node is hostile: names of rules, keys and attributes are whatever a caller sent. The page puts them
// into text nodes and attributes of its own, never into markup, and the content security policy would let no script in
// them run.
package ui
