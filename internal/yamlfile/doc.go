// Package yamlfile decodes YAML strictly: it parses a file into a tree of nodes, which know their
// place in it, and collects all mistakes, each with its place and what to do about it. It refuses to
// convert values: the caller knows the keys and their types.
package yamlfile
