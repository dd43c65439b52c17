"""ncnn's own files: conversion from ONNX, reading and writing, and integers in them."""
