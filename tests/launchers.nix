# The kernels as a C library: a C program with a queue of ns.h and a C++ program with a sycl::queue of its own, on the CPU
# device, against their references.
{
  runCommandCC,
  packages,
  source,
}:
runCommandCC "launchers" { } ''
  export HOME=$PWD
  mkdir -p dist/lib/nextsycl
  ln -s ${packages.nextsycl-kernels}/include dist/include
  cp ${packages.nextsycl-kernels}/lib/*.so dist/lib/nextsycl/
  ln -s ${packages.nextsycl-oneapi} dist/lib/nextsycl/oneapi
  NS_DIST=$PWD/dist NS_BUILD= NS_ONEAPI=${packages.nextsycl-oneapi} bash ${
    source "launchers" [ "kernels/tests" ]
  }/kernels/tests/run.sh | tee log
  grep -E '^[0-9]+ passed, 0 failed' log > "$out"
''
