"""Packages are found, not listed, so that a new folder of operations needs no line elsewhere."""

from setuptools import find_packages, setup

HOUSE = ("kernels", "bench", "results", "analysis")

setup(
    packages=[
        "membound",
        *(
            f"membound.{package}"
            for package in find_packages(include=[*HOUSE, *(f"{name}.*" for name in HOUSE)])
        ),
    ]
)
