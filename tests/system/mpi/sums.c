/* An allreduce of all ranks, and pi by numerical integration as MPICH's cpi has it: a broadcast and a reduction. */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    int rank, size, sum = 0, n = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int mine = rank + 1;
    MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (argc > 1 && rank == 1 && !strcmp(argv[1], "abort"))
        MPI_Abort(MPI_COMM_WORLD, 7);
    if (rank == 0)
        n = 10000;
    MPI_Bcast(&n, 1, MPI_INT, 0, MPI_COMM_WORLD);
    double part = 0.0, pi = 0.0;
    for (int i = rank; i < n; i += size) {
        double x = (i + 0.5) / n;
        part += 4.0 / (1.0 + x * x) / n;
    }
    MPI_Reduce(&part, &pi, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    printf("rank %d of %d: sum %d\n", rank, size, sum);
    if (rank == 0)
        printf("pi is about %.6f\n", pi);
    fflush(stdout);
    MPI_Finalize();
    return rank == 0 && fabs(pi - 3.14159265358979) > 1e-6;
}
