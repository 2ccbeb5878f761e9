#!/usr/bin/env python3
"""Compiles a CUDA file for the emulator: kernels.py OUTPUT DEPFILE -- COMPILER ARGUMENT...

The compiler's arguments name the file and are those of a preprocessor run. What comes out is
compiled after what nvcc would make of its kernels was added, a library whose image is a table of
them: their names and types exist only after macros."""
import os
import re
import subprocess
import sys

KERNEL = re.compile(r'extern\s+"C"\s+__attribute__\(\(__used__\)\)\s+void\s+'
                    r'__launch_bounds__\((?P<bounds>[^;{]*?)\)\s+(?P<name>[A-Za-z_]\w*)\s*\(')


ROW = ('    {{"{name}", gpu_bound({bounds}), gpu_blocks({bounds}),\n'
       '     gpu_caller<&gpu_run_{name}>::call}},\n')
SYMBOL = 'bski_cuda_symbol {name} = {{"{name}", &gpu_library, nullptr}};\n'


def main():
    output, depfile, separator, *command = sys.argv[1:]
    assert separator == '--'
    run = subprocess.run(command + ['-E', '-MD', '-MF', depfile, '-MT', output],
                         stdout=subprocess.PIPE, text=True)
    if run.returncode:
        sys.exit(run.returncode)
    text = run.stdout
    # A function is told from its declaration by what follows; kernels are only ever defined.
    kernels = [match.groupdict() for match in KERNEL.finditer(text)]
    if not kernels:
        sys.exit('no kernel in ' + ' '.join(command))
    text = KERNEL.sub(r'static void gpu_run_\g<name>(', text)
    text += '\nstatic gpu_kernel gpu_kernels[] = {\n'
    text += ''.join(ROW.format(**kernel) for kernel in kernels) + '    {}};\n'
    text += 'static bski_cuda_library gpu_library = {gpu_kernels, nullptr, nullptr};\n'
    text += 'extern "C" {\n' + ''.join(SYMBOL.format(**kernel) for kernel in kernels) + '}\n'
    source = os.path.splitext(output)[0] + '.ii'
    with open(source, 'w') as file:
        file.write(text)
    # The flags without those of the preprocessor and the file.
    flags = [a for a in command if a.startswith(('-f', '-O', '-W', '-m', '-std', '-g'))]
    status = subprocess.run([command[0], *flags, '-c', source, '-o', output]).returncode
    os.remove(source)
    sys.exit(status)


main()
