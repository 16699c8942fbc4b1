// Package cgroup finds the cgroup2 hierarchy, and the directories and ids of cgroups in it.
// It refuses to change any.
package cgroup
