// Package sysctl maps the names of sysctls to their files. Sysctls below net. belong to the
// network namespace of the thread that opens the file. It refuses to interpret a value.
package sysctl
