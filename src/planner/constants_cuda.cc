// Costs on CUDA GPUs, made by `niccolite tune` (docs/tune.md): 2 x NVIDIA H200, 2026-11-21, from
// bench/results/h200_x2_tune.json. Simple of Broadcast, AllGather, Gather and PointToPoint also
// from measurements with 24 channels, which are slower than 16 (docs/design/0013): what one formula
// cannot say, so that without them 18 would be taken.
//
// Columns: fixed, step, channel (us); link of two ranks, link of more, channel (GB/s); round (us);
// fill; overlap. cost.h says what they mean.
#include "planner/cost.h"

namespace niccolite::planner {
namespace {

using enum Collective;
using enum AlgorithmId;
using enum executor::Protocol;

// clang-format off
constexpr CostLine kCosts[] = {
    {AllReduce, Ring, LL, {2.076, 2.12, 0.0127, 113.2, 68, 3.969, 0.00104, 0.001, 0.995}},
    {AllReduce, Ring, LL128, {2.047, 1.88, 0.0101, 523, 120, 5.393, 0.659, 0.001, 0.993}},
    {AllReduce, Ring, Simple, {2.05, 4.1, 0.0489, 305.3, 215, 19.59, 10.1, 0.601, 0.686}},
    {AllReduce, OneShot, LL, {2.263, 0.219, 0.0085, 220.7, 188.4, 18.06, 1.36, 0.0214, 0.0102}},
    {AllReduce, OneShot, LL128, {3.468, 0.717, 0.00245, 372.6, 135, 10.12, 2.22, 1.52, 0.982}},
    {AllReduce, OneShot, Simple, {4.473, 1.38, 0.0413, 184.5, 150, 14.74, 5.28, 0.001, 0.356}},
    {AllReduce, TwoShot, LL, {1.018, 2.12, 0.0152, 113.7, 142.8, 3.514, 0.144, 0.00128, 0.11}},
    {AllReduce, TwoShot, LL128, {3.272, 0.908, 0.00849, 817.6, 250, 6.064, 0.001, 0.0536, 0.991}},
    {AllReduce, TwoShot, Simple, {8.533, 1.39, 0.0394, 394.3, 315, 35.09, 2.97, 0.47, 0.005}},
    {AllReduce, TwoShotLanes, LL, {4.406, 0.43, 0.0153, 115.1, 201.5, 3.464, 0.001, 0.00111, 0.136}},
    {AllReduce, TwoShotLanes, LL128, {4.378, 0.355, 0.00874, 835.6, 265.5, 6.066, 0.001, 0.0548, 0.994}},
    {AllReduce, TwoShotLanes, Simple, {10.31, 0.45, 0.0496, 394.6, 315, 34.94, 2.96, 0.471, 0.005}},
    {Reduce, Ring, LL, {1.216, 1.29, 0.00494, 1410, 68, 29.02, 1.24, 0.918, 0.647}},
    {Reduce, Ring, LL128, {2.569, 0.79, 0.00241, 634.7, 163, 16.1, 1.39, 1.38, 0.891}},
    {Reduce, Ring, Simple, {5.271, 0.509, 0.0131, 478.6, 316.2, 29.19, 2.34, 0.001, 0.0197}},
    {Reduce, RingStrands, LL, {2.453, 1.15, 0.0029, 148.1, 100, 5.677, 0.353, 0.258, 0.977}},
    {Reduce, RingStrands, LL128, {2.268, 1.06, 0.00407, 2321, 100, 18.24, 2.3, 0.779, 0.609}},
    {Reduce, RingStrands, Simple, {5.027, 0.509, 0.00281, 354.6, 340, 28.49, 1.61, 0.001, 0.0288}},
    {Reduce, Direct, LL, {2.159, 0.185, 0.00374, 1155, 667.3, 29.31, 1.25, 1.07, 0.707}},
    {Reduce, Direct, LL128, {3.175, 0.232, 0.00392, 577, 247.4, 18.59, 1.57, 1.85, 0.995}},
    {Reduce, Direct, Simple, {4.774, 0.424, 0.0216, 2049, 330, 30.82, 2.4, 0.279, 0.005}},
    {Broadcast, Ring, LL, {1.234, 1.23, 0.00412, 270.3, 68, 13.15, 0.467, 0.00119, 0.942}},
    {Broadcast, Ring, LL128, {2.489, 0.741, 0.000805, 598, 166.7, 57.06, 1.6, 2.66, 0.843}},
    {Broadcast, Ring, Simple, {5.443, 0.854, 0.0802, 345.8, 316.2, 124.4, 1.96, 0.299, 0.00857}},
    {Broadcast, RingStrands, LL, {2.009, 1.02, 0.0005, 337.1, 100, 13.65, 0.42, 0.153, 0.52}},
    {Broadcast, RingStrands, LL128, {2.116, 1.04, 0.00379, 575.1, 100, 26.66, 1.36, 1.9, 0.76}},
    {Broadcast, RingStrands, Simple, {6.36, 0.695, 0.0424, 332.1, 340, 43.85, 1.75, 0.168, 0.005}},
    {Broadcast, Direct, LL, {2.124, 0.18, 0.00315, 1571, 261.8, 49.32, 1.18, 1.42, 0.61}},
    {Broadcast, Direct, LL128, {3.028, 0.0996, 0.000874, 614.4, 296, 55.31, 1.59, 2.64, 0.841}},
    {Broadcast, Direct, Simple, {5.508, 0.753, 0.0278, 354, 330, 121.2, 2.01, 0.534, 0.005}},
    {Broadcast, ScatterGather, LL, {6, 0.5, 0.004, 150, 150, 8.5, 0, 0, 0}},
    {Broadcast, ScatterGather, LL128, {4.983, 0.496, 0.004, 220, 343.1, 44.84, 6.68, 0.00101, 0.005}},
    {Broadcast, ScatterGather, Simple, {8, 0.5, 0.004, 270, 270, 11.7, 0, 0, 0}},
    {AllGather, Ring, LL, {1.452, 1.45, 0.00167, 168.2, 68, 18.9, 1.58, 0.287, 0.583}},
    {AllGather, Ring, LL128, {2.04, 2.38, 0.00334, 630.5, 190.4, 4.229, 0.001, 0.0757, 0.995}},
    {AllGather, Ring, Simple, {2.491, 4.85, 0.00584, 243.9, 240, 16.97, 5.88, 0.813, 0.867}},
    {AllGather, Direct, LL, {1.733, 0.579, 0.00199, 167.9, 112.9, 20.15, 1.63, 0.272, 0.565}},
    {AllGather, Direct, LL128, {2.713, 0.69, 0.0117, 1159, 167.7, 11.56, 1.06, 0.656, 0.218}},
    {AllGather, Direct, Simple, {5.651, 1.43, 0.00668, 325.3, 335, 64.27, 2.73, 0.331, 0.005}},
    {AllGather, DirectLanes, LL, {2.515, 0.188, 0.00204, 167.4, 146, 19.82, 1.62, 0.264, 0.564}},
    {AllGather, DirectLanes, LL128, {3.26, 0.412, 0.0134, 970.1, 338.2, 12.83, 1.2, 1.01, 0.413}},
    {AllGather, DirectLanes, Simple, {6.752, 0.437, 0.0914, 325.5, 335, 125.2, 1.94, 0.204, 0.005}},
    {AllGather, Pat, LL, {1.549, 1.35, 0.00159, 167.3, 68, 18.53, 1.55, 0.265, 0.576}},
    {AllGather, Pat, LL128, {2.387, 2.04, 0.00283, 559, 120, 4.208, 0.001, 0.0635, 0.994}},
    {AllGather, Pat, Simple, {2.827, 4.55, 0.00429, 245.6, 150, 16.96, 5.87, 0.839, 0.877}},
    {ReduceScatter, Ring, LL, {1.451, 1.45, 0.00452, 156, 68, 12.21, 1.15, 0.151, 0.416}},
    {ReduceScatter, Ring, LL128, {1.933, 2.52, 0.00722, 168.6, 150, 4.026, 0.001, 0.0456, 0.988}},
    {ReduceScatter, Ring, Simple, {2.334, 5.31, 0.0124, 202.7, 240, 14.7, 6.08, 0.726, 0.957}},
    {ReduceScatter, Direct, LL, {1.75, 0.582, 0.00405, 156.3, 776.2, 12.58, 1.22, 0.177, 0.433}},
    {ReduceScatter, Direct, LL128, {2.526, 0.813, 0.017, 1014, 194.8, 10.65, 2.13, 0.875, 0.497}},
    {ReduceScatter, Direct, Simple, {5.605, 1.65, 0.0276, 954.1, 312, 27.67, 3.18, 2.65, 0.68}},
    {ReduceScatter, DirectLanes, LL, {2.154, 0.378, 0.0043, 156.6, 206.9, 12.12, 1.16, 0.154, 0.414}},
    {ReduceScatter, DirectLanes, LL128, {2.921, 0.607, 0.0159, 766.3, 233.8, 7.983, 1.74, 0.00138, 0.005}},
    {ReduceScatter, DirectLanes, Simple, {5.189, 1.84, 0.0374, 710.4, 312, 28.33, 3.25, 2.79, 0.78}},
    {ReduceScatter, Pat, LL, {1.553, 1.36, 0.00396, 155.4, 68, 11.95, 1.13, 0.151, 0.423}},
    {ReduceScatter, Pat, LL128, {2.601, 2.1, 0.011, 375.9, 120, 4.214, 0.349, 0.001, 0.988}},
    {ReduceScatter, Pat, Simple, {2.886, 4.7, 0.015, 211.7, 150, 15.74, 6.17, 0.778, 0.912}},
    {AllToAll, Direct, LL, {1.786, 0.618, 0.000894, 159.3, 457.7, 16.49, 1.59, 0.284, 0.574}},
    {AllToAll, Direct, LL128, {2.307, 0.906, 0.00864, 1101, 136.8, 8.07, 1.43, 1.01, 0.777}},
    {AllToAll, Direct, Simple, {4.115, 1.27, 0.0575, 277.1, 320, 19.01, 2.07, 0.0346, 0.00509}},
    {AllToAll, DirectLanes, LL, {2.717, 0.145, 0.00153, 157.9, 88.87, 16.35, 1.57, 0.195, 0.494}},
    {AllToAll, DirectLanes, LL128, {3.746, 0.148, 0.0109, 207.5, 202.6, 5.471, 0.00104, 0.125, 0.191}},
    {AllToAll, DirectLanes, Simple, {5.221, 1.19, 0.08, 478.8, 320, 30.43, 2.19, 0.616, 0.005}},
    {Gather, Direct, LL, {1.363, 0.692, 0.0005, 179.1, 200, 9.362, 0.0709, 0.00121, 0.995}},
    {Gather, Direct, LL128, {2.644, 0.734, 0.0005, 583.4, 300, 5.187, 0.305, 0.001, 0.991}},
    {Gather, Direct, Simple, {3.151, 1.11, 0.0288, 428.4, 375, 29.79, 4.14, 1.23, 0.989}},
    {Gather, DirectLanes, LL, {2.452, 0.151, 0.0005, 177.6, 154.2, 9.549, 0.116, 0.00114, 0.995}},
    {Gather, DirectLanes, LL128, {2.572, 0.273, 0.00284, 1725, 312.4, 11.33, 0.862, 0.769, 0.877}},
    {Gather, DirectLanes, Simple, {7.251, 0.0929, 0.0293, 342.9, 375, 131.4, 1.85, 0.356, 0.005}},
    {Scatter, Direct, LL, {1.843, 0.35, 0.000899, 206, 200, 16.62, 0.692, 0.0012, 0.908}},
    {Scatter, Direct, LL128, {2.504, 0.757, 0.0005, 1120, 300, 14.85, 1.76, 1.48, 0.988}},
    {Scatter, Direct, Simple, {3.731, 1.37, 0.0382, 364.5, 340, 18.81, 2.3, 0.837, 0.978}},
    {Scatter, DirectLanes, LL, {2.19, 0.182, 0.000675, 211.2, 260.4, 20.15, 0.924, 0.145, 0.985}},
    {Scatter, DirectLanes, LL128, {2.73, 0.187, 0.00607, 2002, 335.8, 13.73, 0.778, 1.3, 0.992}},
    {Scatter, DirectLanes, Simple, {4.908, 0.907, 0.0524, 404.7, 340, 35.51, 2.28, 0.461, 0.005}},
    {PointToPoint, Direct, LL, {2.343, 0.235, 0.0107, 161.7, 192.2, 10.03, 0.0492, 0.0373, 0.291}},
    {PointToPoint, Direct, LL128, {3.97, 0.0999, 0.00911, 353.2, 262.2, 13.86, 0.938, 0.379, 0.005}},
    {PointToPoint, Direct, Simple, {7.807, 0.409, 0.00716, 334.5, 325, 134.7, 1.81, 0.0288, 0.005}},
};
// clang-format on

}  // namespace

std::span<const CostLine> cuda_costs() { return kCosts; }

}  // namespace niccolite::planner
