// Package cnigc is garbage collection for container runtimes that do not ask plugins for it (GC came with CNI 1.1): it finds
// attachments of pods whose network namespace is gone although their DEL never came, and executes that DEL, by all plugins of the
// network, as the runtime would have done.
//
// It refuses to remove anything of which it is not certain that it is gone.
package cnigc
