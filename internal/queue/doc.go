// Package queue is the line in which launches wait for a GPU. Kueue decides who
// is next; this package tells it what the pool has and who wants or holds how
// much of it, and reads its answers.
//
// gpulab's own state is the truth: everything that lies in the cluster is
// derived from it and from the pool's machines, is written again when somebody
// has changed it, and may be lost without harm.
//
//   - a ResourceFlavor is GPUs of one kind, such as those of one model;
//   - the Cohort "lab" has them all, as many as the pool lends out now, or more while
//     some who have been let in wait until a machine has enough at once;
//   - a ClusterQueue is the line of those whom the same kinds will do: so one
//     who waits for a rare one holds back nobody who wants another. Within it
//     order is strict: by the priority of the launches, then who came first;
//   - a LocalQueue is one person in one such line;
//   - a Workload is one launch. It is no pod's: gpulab starts the notebook once
//     its Workload is admitted, and deletes it when the notebook has ended.
//
// A launch that runs already, such as from before a lab had this line, gets a
// Workload that counts at once.
//
// The package imports nothing of gpulab.
package queue
