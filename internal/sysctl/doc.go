// Package sysctl maps the names of sysctls to their files. What is below net. shows the
// network namespace of the thread that opens the file. It refuses to interpret a value.
package sysctl
