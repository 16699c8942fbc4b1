// Package kernelcc says which congestion controls the running kernel has, whoever registered
// them. It refuses to know anything else of them: packages congestion and cc do.
package kernelcc
